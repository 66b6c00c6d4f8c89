"""One search, phase by phase: each phase resumable, no finished trial ever lost."""
