"""One setting says where Redis is."""

import pytest

from fairslice.redis_setting import RedisSetting, RedisSettingError


def test_single_servers_by_tcp_tls_and_socket() -> None:
    plain = RedisSetting.parse("redis://user:p%40ss@db.example:6380/3")
    assert plain.topology == "single"
    assert plain.options["password"] == "p@ss"
    assert (plain.options["host"], plain.options["port"], plain.options["db"]) == (
        "db.example",
        6380,
        3,
    )
    tls = RedisSetting.parse("rediss://db.example?ssl_ca_certs=/etc/ca.pem")
    assert tls.options["ssl_ca_certs"] == "/etc/ca.pem"
    assert RedisSetting.parse("unix:///run/redis.sock").options["path"] == "/run/redis.sock"


def test_sentinels_name_a_service_and_may_have_their_own_login() -> None:
    setting = RedisSetting.parse(
        "redis+sentinel://u:secret@one,two:26380/main/2?sentinel_password=other&client_name=x"
    )
    assert (setting.topology, setting.service) == ("sentinel", "main")
    assert setting.hosts == (("one", 26379), ("two", 26380))
    assert setting.options == {
        "username": "u",
        "password": "secret",
        "db": 2,
        "client_name": "x",
    }
    assert setting.sentinel_options == {"password": "other"}
    assert not setting.tls


def test_clusters_name_some_of_their_nodes() -> None:
    setting = RedisSetting.parse("rediss+cluster://:secret@one:7000,[::1]:7001,two")
    assert setting.topology == "cluster"
    assert setting.hosts == (("one", 7000), ("::1", 7001), ("two", 6379))
    assert setting.tls
    assert setting.options == {"password": "secret"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no known scheme"),
        ("localhost:6379", "no known scheme"),
        ("http://localhost", "no known scheme"),
        ("unix+cluster://x", "no known scheme"),
        ("redis+raft://x", "no known scheme"),
        ("unix://", "no socket path"),
        ("redis://u:secret@host:none", "can't be read"),
        ("redis+sentinel://host", "no Sentinel service"),
        ("redis+sentinel://u:secret@one,,two/main", "can't be read"),
        ("redis+cluster://host:port", "can't be read"),
        ("redis+cluster://host/1", "a cluster has only 0"),
    ],
)
def test_a_bad_setting_says_what_is_wrong_and_never_the_password(text: str, words: str) -> None:
    with pytest.raises(RedisSettingError, match=words) as caught:
        RedisSetting.parse(text)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_printed_setting_hides_its_secrets() -> None:
    setting = RedisSetting.parse("redis+sentinel://u:secret@one/main?sentinel_password=hidden")
    assert "secret" not in repr(setting)
    assert "hidden" not in repr(setting)
