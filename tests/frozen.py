"""Imported last by a process that forks others: what it has imported is kept from collections.

A collection in a fork visits all of torch and so copies its pages.
"""

import gc

gc.collect()
gc.freeze()
