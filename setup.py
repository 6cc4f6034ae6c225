"""Build the native kernels, which setup.cfg cannot declare.

Each kernel is optional: without a C compiler the build warns, and the pure-Python kernels are used.
"""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("fyrehose", "kernels", "native")
#: The only one outside of the kernels, because it uses pyzmq; its docstring says how.
ZEROMQ = Path("fyrehose", "protocols", "eventbus", "zeromq.pyx")

setup(
    ext_modules=[
        Extension(
            ".".join(source.with_suffix("").parts),
            [str(source)],
            depends=[str(shared) for shared in sorted(NATIVE.glob("*.pxd"))],
            extra_compile_args=["-O3"],
            optional=True,
        )
        for source in [*sorted(NATIVE.glob("*.pyx")), ZEROMQ]
    ]
)
