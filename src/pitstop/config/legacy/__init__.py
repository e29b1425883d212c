"""The guides' configurations converted into ours."""
