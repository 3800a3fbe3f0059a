"""Settings: defaults, ranges, cross-checks, and what is said about wrong ones."""

import socket

import pytest

from agentrt.core.errors import ConfigurationError
from agentrt.core.urls import without_password
from agentrt.settings import Settings, unknown_variables

# Page 5 of the design: names and defaults that users rely on.
DEFAULTS = {
    "database_url": None,
    "direct_database_url": None,
    "agents": (),
    "queues": ("default",),
    "slots": 20,
    "heartbeat_seconds": 2,
    "lease_seconds": 15,
    "stop_seconds": 3,
    "stall_seconds": 30,
    "poll_seconds": 5,
    "drain_seconds": 25,
    "drain_tool_seconds": 300,
    "max_attempts": 5,
    "model_idle_seconds": 120,
    "model_first_event_seconds": 600,
    "model_call_seconds": 1800,
    "model_retry_seconds": 21600,
    "release_wait_seconds": 10,
    "model_concurrency": 0,
    "tool_seconds": 600,
    "tool_result_max_bytes": 32768,
    "message_max_bytes": 8388608,
    "transactional_connections": 4,
    "transactional_seconds": 10,
    "db_statement_seconds": 10,
    "db_lock_seconds": 2,
    "db_idle_transaction_seconds": 5,
    "http_host": "127.0.0.1",
    "http_port": 9464,
    "log_level": "info",
    "log_format": "auto",
}


def problem(**values: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Settings(**values)
    return str(caught.value)


def test_every_setting_has_its_promised_name_and_default():
    settings = Settings()
    assert {name: getattr(settings, name) for name in DEFAULTS} == DEFAULTS
    assert set(Settings.model_fields) == {*DEFAULTS, "worker_name"}


def test_the_worker_is_named_after_its_host_unless_it_has_a_name():
    assert Settings().worker_name == socket.gethostname()
    assert Settings(worker_name="box-7").worker_name == "box-7"


def test_variables_are_read_from_the_environment_and_arguments_win(monkeypatch):
    monkeypatch.setenv("AGENTRT_SLOTS", "7")
    monkeypatch.setenv("AGENTRT_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("AGENTRT_HEARTBEAT_SECONDS", "0.5")
    assert (Settings().slots, Settings().log_level, Settings().heartbeat_seconds) == (7, "debug", 0.5)
    assert Settings(slots=3).slots == 3


def test_lists_are_separated_by_commas_and_lose_blanks_and_repetitions(monkeypatch):
    monkeypatch.setenv("AGENTRT_QUEUES", " fast, slow ,,fast")
    monkeypatch.setenv("AGENTRT_AGENTS", "shop.agents,./more.py")
    assert Settings().queues == ("fast", "slow")
    assert Settings().agents == ("shop.agents", "./more.py")


def test_an_empty_variable_counts_as_not_set(monkeypatch):
    monkeypatch.setenv("AGENTRT_SLOTS", "")
    monkeypatch.setenv("AGENTRT_QUEUES", "")
    assert Settings().slots == 20
    assert Settings().queues == ("default",)


def test_settings_do_not_change():
    with pytest.raises(Exception, match="frozen"):
        Settings().slots = 3


def test_the_direct_url_is_the_url_unless_another_is_given():
    one, two = "postgresql://a@h/one", "postgresql://a@h/two"
    assert Settings(database_url=one).direct_database_url == one
    assert Settings(database_url=one, direct_database_url=two).direct_database_url == two


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AGENTRT_SLOTS", "-1"),
        ("AGENTRT_SLOTS", "10001"),
        ("AGENTRT_SLOTS", "many"),
        ("AGENTRT_SLOTS", "2.5"),
        ("AGENTRT_HTTP_PORT", "65536"),
        ("AGENTRT_HTTP_PORT", "tcp://10.0.0.1:9464"),
        ("AGENTRT_DRAIN_SECONDS", "nan"),
        ("AGENTRT_DRAIN_SECONDS", "inf"),
        ("AGENTRT_MODEL_IDLE_SECONDS", "0"),
        ("AGENTRT_TRANSACTIONAL_CONNECTIONS", "0"),
        ("AGENTRT_MESSAGE_MAX_BYTES", "8388609"),
        ("AGENTRT_LOG_LEVEL", "loud"),
        ("AGENTRT_LOG_FORMAT", "xml"),
        ("AGENTRT_QUEUES", ","),
        ("AGENTRT_DATABASE_URL", "mysql://h/db"),
    ],
)
def test_a_wrong_value_is_one_line_with_the_variable_the_value_and_what_is_accepted(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    message = problem()
    assert message.startswith(f"{variable}={value.rstrip(',')} is not ")
    assert "\n" not in message
    assert "pydantic" not in message


def test_each_wrong_value_gets_a_line():
    assert [line.split("=")[0] for line in problem(slots=0, http_port=-1).splitlines()] == [
        "AGENTRT_SLOTS",
        "AGENTRT_HTTP_PORT",
    ]


def test_a_lease_too_short_for_three_heartbeats_and_a_stop_is_refused_with_the_least_value():
    assert Settings(heartbeat_seconds=2, stop_seconds=3, lease_seconds=9).lease_seconds == 9
    message = problem(heartbeat_seconds=2, stop_seconds=3, lease_seconds=8.9)
    assert message.startswith("AGENTRT_LEASE_SECONDS=8.9 is too short")
    assert "9 or more" in message


def test_waiting_for_a_lock_longer_than_the_statement_may_take_is_refused():
    assert "AGENTRT_DB_STATEMENT_SECONDS" in problem(db_lock_seconds=11)


def test_an_unknown_argument_is_refused_with_the_setting_that_was_meant():
    assert problem(slot=3) == "slot is no setting of agentrt; did you mean AGENTRT_SLOTS?"


def test_the_database_url_is_demanded_by_whoever_needs_it():
    assert Settings(database_url="postgresql://h/db").require_database_url() == "postgresql://h/db"
    with pytest.raises(ConfigurationError, match="AGENTRT_DATABASE_URL is not set"):
        Settings().require_database_url()


def test_passwords_are_shown_nowhere():
    assert "geheim" not in problem(database_url="mysql://me:geheim@h/db")
    assert "geheim" not in repr(Settings(database_url="postgresql://me:geheim@h/db"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:pw@h:5432/db", "postgresql://me:***@h:5432/db"),
        ("postgresql://me:p@w/d@h/db", "postgresql://me:***@h/db"),
        ("postgresql://h/db?user=me&password=pw&x=1", "postgresql://h/db?user=me&password=***&x=1"),
        ("postgresql://h:5432/db?password=p@w", "postgresql://h:5432/db?password=***"),
        ("postgresql://me@h:5432/db", "postgresql://me@h:5432/db"),
        ("postgresql://postgres@/postgres?host=/run/pg", "postgresql://postgres@/postgres?host=/run/pg"),
    ],
)
def test_a_url_is_shown_without_its_password(url, shown):
    assert without_password(url) == shown


def test_an_unknown_variable_is_warned_about_by_name_with_the_close_match():
    warnings = unknown_variables({"AGENTRT_SLOT": "3", "AGENTRT_ZZZ": "", "AGENTRT_SLOTS": "3", "PATH": "/bin"})
    assert warnings == [
        "the variable AGENTRT_SLOT is no setting of agentrt and has no effect; did you mean AGENTRT_SLOTS?",
        "the variable AGENTRT_ZZZ is no setting of agentrt and has no effect",
    ]


def test_what_kubernetes_adds_for_services_is_not_warned_about():
    added = ["AGENTRT_SERVICE_HOST", "AGENTRT_SERVICE_PORT_HTTP", "AGENTRT_PORT", "AGENTRT_PORT_9464_TCP_ADDR"]
    assert unknown_variables(dict.fromkeys(added, "x")) == []


def test_passwords_among_the_parameters_of_a_url_are_known_as_such():
    settings = Settings(database_url="postgresql://h/db?user=u&password=a%2Fb&sslpassword=c")
    assert set(settings.passwords()) == {"a%2Fb", "a/b", "c"}


def test_a_password_before_a_parameter_with_an_at_sign_is_known_as_such():
    settings = Settings(database_url="postgresql://me:geheim@h/db?application_name=x@y")
    assert "geheim" in settings.passwords()


def test_a_password_that_nobody_encoded_is_known_as_a_whole():
    assert Settings(database_url="postgresql://me:p@w/d?#@h/db").passwords()[0] == "p@w/d?#"
