"""Rules for passwords, and the secrets that the catalog keeps of them (quorum/api/security/passwords.py)."""

from __future__ import annotations

import pytest

from quorum.api.security.passwords import MAX_COST, check_password, is_right, secret_of

PASSWORD = "a long password"
SECRET = f"scrypt$16384${'00' * 16}$ee9eca233096ed6888e80e83eac97302f28d2586141cb022f4fb935ee0b929c7"
"""Of this password and a salt of zeros. Catalogs have such texts, so they stay right."""


def test_a_password_is_known_by_its_secret_alone() -> None:
    assert secret_of(PASSWORD, bytes(16)) == SECRET
    assert is_right(PASSWORD, SECRET)
    assert not is_right("another password", SECRET)
    assert not is_right(PASSWORD, "")
    assert PASSWORD not in SECRET


def test_two_users_with_one_password_have_secrets_without_a_common_part() -> None:
    one, other = (secret_of(PASSWORD).split("$") for _ in range(2))
    assert one[:2] == other[:2] == ["scrypt", "16384"]
    assert not {*one[2:]} & {*other[2:]}
    assert is_right(PASSWORD, "$".join(one)) and is_right(PASSWORD, "$".join(other))


@pytest.mark.parametrize("place", [SECRET.rindex("$") + 1, len(SECRET) - 1])
def test_all_of_the_key_counts(place: int) -> None:
    assert SECRET[place] != "0"
    assert not is_right(PASSWORD, SECRET[:place] + "0" + SECRET[place + 1 :])


@pytest.mark.parametrize(
    "secret", ["bcrypt$16384$00$00", "scrypt", "scrypt$-1$00$00", f"scrypt${2 * MAX_COST}$00$00"]
)
def test_a_secret_of_another_kind_or_of_a_cost_that_no_member_can_pay_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="a secret of an unknown kind"):
        is_right(PASSWORD, secret)


@pytest.mark.parametrize(
    ("password", "is_allowed"),
    [
        ("1234567", False),
        ("12345678", True),
        ("\u00e9" * 8, True),
        ("x" * 1_024, True),
        ("x" * 1_025, False),
        ("\u00e9" * 512, True),
        ("\u00e9" * 513, False),
    ],
)
def test_a_password_has_at_least_8_characters_and_at_most_1024_bytes(password: str, is_allowed: bool) -> None:
    if is_allowed:
        check_password(password)
    else:
        with pytest.raises(ValueError, match="at least 8 characters, and at most 1024 bytes") as refused:
            check_password(password)
        assert password not in str(refused.value)
