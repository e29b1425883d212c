"""Timestamps of logs as seconds since the first one; many have no year, and clocks are set back."""

import math
import re
from datetime import date

_DAY_S = 86400
# Most logs without a year are of one year; a leap year lets 29 February pass.
_ASSUMED_YEAR = 2000
_HALF_A_YEAR_DAYS = 180


class Clock:
    """Turns printed timestamps into seconds since the first of them.

    Understands ``2022-05-22 02:54:29,655``, ``2023/06/17 10:36:22``, ``07/30 11:42:39`` (month and
    day) and ``23-03-05 12:00:01.123``: the date's shape follows from its length.
    """

    def __init__(self) -> None:
        self.started: str | None = None
        """First timestamp, as printed."""
        self.resolution_s = 1.0
        self.has_year = True
        self.times_back = 0
        self.most_back_s = 0.0
        self._zero_s = math.nan
        self._last_s = -math.inf
        self._date = b""
        self._date_s = math.nan
        self._minute = b""
        self._minute_s = math.nan
        self._days_s = 0.0
        self._year = _ASSUMED_YEAR
        self._ordinal = 0
        self._first_ordinal: int | None = None

    def at(self, stamp: re.Pattern[bytes], line: bytes) -> float:
        """Give the moment that a line is stamped with, as `seconds` does; NaN where it has none.

        Args:
            stamp: Finds the date and the time, its first two groups.
            line: The line.
        """
        found = stamp.search(line)
        return self.seconds(found[1], found[2]) if found else math.nan

    def seconds(self, day: bytes, time: bytes) -> float:
        """Give seconds since the first timestamp; NaN when this is none.

        Args:
            day: The date as printed.
            time: ``HH:MM:SS``, with a fraction or without.
        """
        if day != self._date:
            self._turn(day)
            self._minute = b""
        try:
            minute = time[:5]
            if minute != self._minute:
                self._minute_s = self._date_s + int(time[:2]) * 3600 + int(time[3:5]) * 60
                self._minute = minute
            now = self._minute_s + int(time[6:8])
            digits = len(time) - 9
            if digits > 0:
                now += int(time[9:]) / (1000 if digits == 3 else 10**digits)
                self.resolution_s = 0.001
        except ValueError:
            return math.nan
        if now < self._last_s - 1.0:
            self.times_back += 1
            self.most_back_s = max(self.most_back_s, self._last_s - now)
        elif math.isnan(self._zero_s) and not math.isnan(now):
            self._zero_s = now
            self.started = f"{day.decode('latin-1')} {time.decode('latin-1')}"
        self._last_s = now
        return now - self._zero_s

    def hour(self, time: bytes) -> float:
        """Give seconds since the first time of day; a time far before the last is of the next day.

        Args:
            time: ``HH:MM:SS``, with a fraction or without.
        """
        try:
            now = int(time[:2]) * 3600 + int(time[3:5]) * 60 + float(time[6:])
        except ValueError:
            return math.nan
        now += self._days_s
        if now < self._last_s - _DAY_S / 2:
            self._days_s += _DAY_S
            now += _DAY_S
        spent = self.unix(now)
        self.resolution_s = 0.001 if len(time) > len("HH:MM:SS") else 1.0
        return spent

    def unix(self, now_s: float) -> float:
        """Take a moment that is already in seconds."""
        if not math.isfinite(now_s):
            return math.nan
        self.resolution_s = 0.001
        if now_s < self._last_s - 1.0:
            self.times_back += 1
            self.most_back_s = max(self.most_back_s, self._last_s - now_s)
        if math.isnan(self._zero_s):
            self._zero_s = now_s
        self._last_s = now_s
        return now_s - self._zero_s

    def _turn(self, day: bytes) -> None:
        self._date = day
        try:
            ordinal = self._ordinal_of(day)
        except ValueError:
            self._date_s = math.nan
            return
        self._ordinal = ordinal
        if self._first_ordinal is None:
            self._first_ordinal = ordinal  # small numbers keep milliseconds exact
        self._date_s = float((ordinal - self._first_ordinal) * _DAY_S)

    def _ordinal_of(self, day: bytes) -> int:
        if len(day) == 10:
            return date(int(day[:4]), int(day[5:7]), int(day[8:10])).toordinal()
        if len(day) == 8:
            return date(2000 + int(day[:2]), int(day[3:5]), int(day[6:8])).toordinal()
        if len(day) != 5:
            raise ValueError(day)
        self.has_year = False
        month, number = int(day[:2]), int(day[3:5])
        ordinal = date(self._year, month, number).toordinal()
        if ordinal < self._ordinal - _HALF_A_YEAR_DAYS:
            self._year += 1  # December turned into January
            ordinal = date(self._year, month, number).toordinal()
        return ordinal
