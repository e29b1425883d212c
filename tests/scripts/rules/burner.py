"""Keeps one core busy until its input ends."""

import sys
import threading

threading.Thread(target=lambda: (sys.stdin.read(), setattr(sys, "over", True)), daemon=True).start()
while not hasattr(sys, "over"):
    sum(range(10_000))
