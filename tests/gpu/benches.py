"""Measurements. On the fake driver they are rehearsed, as small as can be, and give no numbers."""
