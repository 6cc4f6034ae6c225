"""Key files of CURVE, as `zmq.auth.create_certificates` writes them, and Z85."""

from __future__ import annotations

from pathlib import Path

import pytest

from fyrehose.errors import ConfigError
from fyrehose.protocols.eventbus.keys import Keys, from_z85, load_clients, load_public, z85

PUBLIC, SECRET = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"
FILE = f"""#   ****  Generated on 2024-05-01 10:20:30 by pyzmq  ****
metadata
curve
    public-key = "{PUBLIC}"
"""


def test_z85_matches_the_vectors_of_its_text() -> None:
    """ZeroMQ RFC 32, and the keys of RFC 26."""
    assert z85(bytes.fromhex("864fd26fb559f75b")) == "HelloWorld"
    assert from_z85("HelloWorld").hex() == "864fd26fb559f75b"
    assert from_z85(PUBLIC).hex() == "bb88471d65e2659b30c55a5321cebb5aab2b70a398645c26dca2b2fcb43fc518"
    assert z85(from_z85(SECRET)) == SECRET


@pytest.mark.parametrize("text", ["Hello World", "Hell\xf6World", "~~~~~", "#####"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        from_z85(text)


def test_pair_and_public_keys_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "a.key").write_text(FILE)
    (tmp_path / "a.key_secret").write_text(f'{FILE}    secret-key = "{SECRET}"\n')
    assert load_public(str(tmp_path / "a.key")) == from_z85(PUBLIC)
    assert Keys.load(str(tmp_path / "a.key_secret")) == Keys(from_z85(PUBLIC), from_z85(SECRET))
    assert load_clients(str(tmp_path)) == {from_z85(PUBLIC)}


def test_unusable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it is no directory"):
        load_clients(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="no client key in"):
        load_clients(str(tmp_path))
    path = tmp_path / "a.key"
    for text, error in (
        ("", "it has no public key"),
        (FILE.replace("Yne", ""), "a key has 40 characters"),
        (FILE.replace("Yne", "~~~"), "is not Z85"),
        (FILE.replace("Yne", "###"), "is damaged"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=error):
            load_public(str(path))
    path.write_text(FILE)
    with pytest.raises(ConfigError, match="has no secret key"):
        Keys.load(str(path))
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot read the key"):
        load_public(str(path))
