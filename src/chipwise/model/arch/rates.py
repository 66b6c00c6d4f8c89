"""Sampling and frame rates of audio models such as Whisper and wav2vec 2.0."""

SAMPLES_PER_S, FRAMES_PER_S = 16_000.0, 100.0
