"""Certificates for tests of TLS."""
import subprocess


def self_signed(work):
    """(file of a certificate of 127.0.0.1 that nobody but itself signed, file of its key) in this directory."""
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", work / "key.pem", "-out",
         work / "cert.pem", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        capture_output=True, check=False,
    )
    assert made.returncode == 0, made.stderr
    return work / "cert.pem", work / "key.pem"
