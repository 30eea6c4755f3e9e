"""The compiled half of seglog. Sources: cext/. Contract: the .pyi files here."""
try:
    from seglog._kernels import window as window
except ImportError as e:
    raise ImportError(
        "seglog's kernels are not built. In a checkout run: make build (or pip install -e .)"
    ) from e
