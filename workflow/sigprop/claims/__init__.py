"""One small function per claim of the papers: tables in, verdict out."""
