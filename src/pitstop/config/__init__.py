"""Every knob, typed, bounded and documented, and the door through which it comes in."""
