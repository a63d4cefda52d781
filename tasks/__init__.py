"""One module per DVC stage or command, and the adapters of Ray and MLflow."""
