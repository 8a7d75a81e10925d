"""Certificates for calls between processes of one flow.

A process with the flow's token derives the key of the flow's private certificate authority, and makes a certificate of
its own with it. Both sides of a connection ask for one, so that a stranger is refused while the connection is set up:
before any message is read, and without having seen the token.
"""

from __future__ import annotations

import datetime as dt
import functools
from dataclasses import dataclass

from unbroken.codecs.codec import Codec
from unbroken.security.keys import derive

HOST_NAME = "unbroken"
"""The name in every certificate. Addresses come and go; what counts is who could have made the certificate."""

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of the curve P-256: private keys are numbers below it."""

VALID_FROM = dt.datetime(2000, 1, 1)
VALID_TO = dt.datetime(9999, 12, 31, 23, 59, 59)
"""Clocks that are wrong must not break connections; certificates end with the processes that made them."""


@dataclass(frozen=True)
class Credentials:
    """The certificate of the flow's authority, and a process's own certificate and key, as PEM."""

    authority: bytes
    certificate: bytes
    key: bytes

    def to_text(self) -> str:
        """For processes that are not to have the token: Spark's Python workers."""
        return CREDENTIALS.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> Credentials:
        return CREDENTIALS.decode(text.encode())


CREDENTIALS = Codec(Credentials, "credentials", readable=True)


@functools.lru_cache(maxsize=64)
def credentials(token: str) -> Credentials:
    """The credentials of this process; made once, which takes about a millisecond."""
    # Loaded when needed: Spark's Python workers are started often and get theirs as text.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    # 48 bytes: the remainder of a number that is longer than the order by 128 bits is as good as evenly spread.
    scalar = int.from_bytes(derive(token, "certificate authority", 48), "big") % (ORDER - 1) + 1
    signer = ec.derive_private_key(scalar, ec.SECP256R1())
    own = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority of an unbroken flow")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST_NAME)])

    def certificate(name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder(issuer, name, key, x509.random_serial_number(), VALID_FROM, VALID_TO)
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        return builder.add_extension(authority_key, critical=False)

    authority = (
        certificate(issuer, signer.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    leaf = (
        certificate(subject, own.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST_NAME)]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return Credentials(
        authority.public_bytes(Encoding.PEM),
        leaf.public_bytes(Encoding.PEM),
        own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
