"""Clusters that are not ours: how safe they are, and how one signs in."""

from __future__ import annotations

import ssl

import pytest

from gyre_engine.log.brokers import Guards, Severity, judge
from gyre_engine.log.credentials import UnsupportedSecurity, broker_credentials
from gyre_engine.log.settings import KafkaSettings, consumer_properties, producer_properties
from gyre_engine.log.topics import topic_config

SAFE = KafkaSettings("k:9092", replication=3)


def test_three_replicas_two_in_sync_and_no_unclean_election_are_safe() -> None:
    assert judge(SAFE, Guards(brokers=3, min_insync=2, unclean_election=False, offsets_replication=3)) == []


@pytest.mark.parametrize(
    ("settings", "guards", "what", "severity"),
    [
        (SAFE, Guards(brokers=2), "brokers", Severity.REFUSE),
        (KafkaSettings("k", replication=2), Guards(brokers=3), "replication", Severity.REFUSE),
        (SAFE, Guards(brokers=3, min_insync=1), "min.insync.replicas", Severity.WARN),
        (SAFE, Guards(brokers=3, unclean_election=True), "unclean.leader.election.enable", Severity.WARN),
        (SAFE, Guards(brokers=3, offsets_replication=1), "offsets.topic.replication.factor", Severity.WARN),
    ],
)
def test_each_weakness_is_a_finding(settings: KafkaSettings, guards: Guards, what: str, severity: Severity) -> None:
    (finding,) = judge(settings, guards)
    assert (finding.what, finding.severity) == (what, severity)


@pytest.mark.parametrize(("replication", "insync"), [(1, "1"), (2, "1"), (3, "2"), (5, "2")])
def test_topics_ask_for_two_replicas_in_sync_where_three_are_there(replication: int, insync: str) -> None:
    config = topic_config(KafkaSettings("k", replication=replication), "training")
    assert (config["min.insync.replicas"], config["unclean.leader.election.enable"]) == (insync, "false")


def test_security_goes_to_every_client_and_never_into_repr() -> None:
    extra = {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "hunter2"}
    settings = KafkaSettings("k:9092", extra=extra)
    for properties in (producer_properties(settings), consumer_properties(settings, "g", 100)):
        assert {key: properties[key] for key in extra} == extra
    assert "hunter2" not in repr(settings)
    assert consumer_properties(settings, "g", 100)["auto.offset.reset"] == "earliest"


def test_the_streams_sign_in_as_the_others_do() -> None:
    from faust import SASLCredentials, SSLCredentials
    from faust.types.auth import AuthProtocol, SASLMechanism

    assert broker_credentials({}) is None
    plain = broker_credentials(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": "p"}
    )
    assert isinstance(plain, SASLCredentials)
    assert (plain.protocol, plain.mechanism) == (AuthProtocol.SASL_PLAINTEXT, SASLMechanism.SCRAM_SHA_512)
    assert (plain.username, plain.password) == ("u", "p")
    secure = broker_credentials({"security.protocol": "sasl_ssl", "sasl.mechanisms": "PLAIN"})
    assert isinstance(secure, SASLCredentials) and secure.protocol == AuthProtocol.SASL_SSL
    tls = broker_credentials({"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"})
    assert isinstance(tls, SSLCredentials)
    assert tls.context.verify_mode == ssl.CERT_REQUIRED and not tls.context.check_hostname


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"security.protocol": "telepathy"}, "security.protocol 'telepathy'"),
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"}, "sasl.mechanism 'OAUTHBEARER'"),
        ({"security.protocol": "ssl", "ssl.ca.pem": "x"}, "ssl.ca.pem"),
    ],
)
def test_what_the_streams_cannot_be_given_is_named(extra: dict[str, str], named: str) -> None:
    with pytest.raises(UnsupportedSecurity, match=named):
        broker_credentials(extra)
