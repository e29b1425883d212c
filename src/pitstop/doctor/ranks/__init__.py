"""Several ranks of one run: what each works, who is waited for, where and from when on."""
