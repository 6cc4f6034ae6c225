"""Make a thumbnail of the image on standard input: the handler of `fyrehose work`.

    fyrehose work --stream images --subscription thumbs -- python thumbnail.py thumbs/

The image is a binary PPM (P6), so that this needs no library; with Pillow `halved` would be one line.
"""

import os
import sys
from pathlib import Path

#: The exit status that returns the image without counting a failure.
TRY_AGAIN = 75


def halved(image: bytes) -> bytes:
    """Return *image* with half of its width and height; raise ValueError if it is none."""
    try:
        kind, width, height, depth, pixels = image.split(maxsplit=4)
        columns, rows = int(width), int(height)
    except ValueError as error:
        raise ValueError("this is not a binary PPM image") from error
    if kind != b"P6" or depth != b"255" or len(pixels) < columns * rows * 3:
        raise ValueError("this is not a complete binary PPM image of 8 bits")
    small = bytearray(b"P6 %d %d 255\n" % (columns // 2, rows // 2))
    for y in range(0, rows // 2 * 2, 2):
        for x in range(0, columns // 2 * 2, 2):
            at = (y * columns + x) * 3
            small += pixels[at : at + 3]
    return bytes(small)


def main() -> int:
    """Write the thumbnail to the directory that is the only argument; return the exit status."""
    directory = Path(sys.argv[1])
    if not directory.is_dir():
        print(f"there is no directory {directory}", file=sys.stderr)
        return TRY_AGAIN  # This is not the image's fault.
    try:
        small = halved(sys.stdin.buffer.read())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1  # After the last failure the image is a dead letter.
    done = directory / f"{os.environ['FYREHOSE_SEQ']}.ppm"
    unfinished = done.with_suffix(f".{os.getpid()}")  # A record may be handled twice; a file is complete, or not there.
    unfinished.write_bytes(small)
    unfinished.rename(done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
