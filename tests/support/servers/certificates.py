"""Certificates for tests of TLS."""
import ssl
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


def server_context(directory, *, asks_clients=None):
    """The TLS of a server with the files `certificate` and `key` of this directory."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "certificate", directory / "key")
    if asks_clients is not None:
        context.load_verify_locations(directory / "certificate")
        context.verify_mode = asks_clients
    return context


def client_context(directory):
    """The TLS of a client that trusts it."""
    return ssl.create_default_context(cafile=directory / "certificate")
