"""Any ONNX graph of a user: its inputs, data for them (made or given), and sessions that run, time and profile it."""
