"""base/tls.py: the one way to make a context of TLS."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import pytest

import nsqdigest
from nsqdigest.base.tls import client_context

pytestmark = pytest.mark.unit

PACKAGE = Path(nsqdigest.__file__).parent


def test_a_context_checks_the_chain_and_the_names_of_subject_alt_name_alone() -> None:
    context = client_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.hostname_checks_common_name is False
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("text", ["", " \n"])
def test_no_authorities_are_not_those_of_the_system(text: str) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        client_context(text)


def test_no_other_module_makes_a_context() -> None:
    making = re.compile(r"create_default_context|SSLContext\(|create_connection_context")
    found = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if making.search(path.read_text("utf-8"))]
    assert found == [Path("base/tls.py")]
