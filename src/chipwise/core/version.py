"""The version of chipwise, which files that it writes name."""

VERSION = "0.1.0"
