"""Rates at which models of sound read it, as Whisper and wav2vec 2.0 do."""

SAMPLES_PER_S, FRAMES_PER_S = 16_000.0, 100.0
