"""Which columns rows may be split by, given which rows operators bring together: the rule and what follows from it."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from unbroken.flow.shard_keys import Need, Origin, Underivable, derived, described, merged, parted, written


def origin(**columns: str) -> Origin:
    return frozenset(columns.items())


def anything(_: Origin) -> bool:
    return True


BY_SHOP = Need("groupBy(shop)", (origin(a="shop"),))
BY_BOTH = Need("groupBy(shop, customer)", (origin(a="shop"), origin(a="customer")))
JOIN = Need("join(id, user)", (origin(a="id", b="user"),))
GLOBAL = Need("groupBy()", (), "brings all rows together")


def test_columns_that_are_keys_of_every_operator_part_nothing() -> None:
    assert not parted([BY_SHOP, BY_BOTH], {"a": ("shop",)})
    assert parted([BY_SHOP, BY_BOTH], {"a": ("customer",)}) == [BY_SHOP]
    assert parted([BY_SHOP, BY_BOTH], {"a": ("shop", "customer")}) == [BY_SHOP]
    assert parted([GLOBAL], {"a": ("shop",)}) == [GLOBAL]
    assert not parted([], {"a": ("shop",)})


def test_columns_of_joined_inputs_go_together_by_position() -> None:
    assert not parted([JOIN], {"a": ("id",), "b": ("user",)})
    assert parted([JOIN], {"a": ("id",), "b": ("id",)}) == [JOIN]
    pairs = Need("join", (origin(a="x", b="x"), origin(a="y", b="y")))
    assert not parted([pairs], {"a": ("x", "y"), "b": ("x", "y")})
    assert parted([pairs], {"a": ("x", "y"), "b": ("y", "x")}) == [pairs]


def test_rows_that_are_split_by_everything_are_parted_by_any_operator_they_reach() -> None:
    assert parted([BY_SHOP], {"a": ("*",)}) == [BY_SHOP]
    assert not parted([BY_SHOP], {"a": ("shop",), "b": ("*",)})


def test_what_is_derived() -> None:
    assert derived([BY_BOTH], ["a"], anything) == {"a": ("customer", "shop")}
    assert derived([BY_BOTH, BY_SHOP], ["a"], anything) == {"a": ("shop",)}
    assert derived([JOIN, BY_SHOP], ["a", "b"], anything) == Underivable(
        "join(id, user), groupBy(shop) have no key in common by which rows could be split",
        "put them into segments of their own, or use one shard (leave shards out)",
    )
    assert derived([BY_SHOP], ["a", "b"], anything) == {"a": ("shop",), "b": ("*",)}
    assert derived([], ["a", "b"], anything) == {"a": ("*",), "b": ("*",)}
    assert derived([BY_BOTH], ["a"], lambda position: position == origin(a="customer")) == {"a": ("customer",)}
    assert isinstance(derived([BY_BOTH], ["a"], lambda _: False), Underivable)
    assert derived([BY_SHOP, GLOBAL], ["a"], anything) == Underivable(
        "groupBy() brings all rows together", GLOBAL.remedy
    )


def test_very_many_combinations_are_not_followed() -> None:
    wide = Need("join", tuple(origin(a=f"x{i}", b=f"y{j}") for i in range(40) for j in range(40)))
    found = derived([wide], ["a", "b"], anything)
    assert isinstance(found, Underivable) and "name columns" in found.remedy


def test_one_input_has_one_column_at_a_position() -> None:
    assert merged(origin(a="x"), origin(b="y")) == origin(a="x", b="y")
    assert merged(origin(a="x"), origin(a="x")) == origin(a="x")
    assert merged(origin(a="x"), origin(a="y")) is None
    assert merged(origin(a="x"), None) is None


def test_columns_as_they_are_written() -> None:
    assert written({"a": ("x",), "b": ("x",)}) == "shard_by=['x']"
    assert written({"a": ("x",), "b": ("y", "z")}) == "shard_by={'a': ['x'], 'b': ['y', 'z']}"


def test_columns_as_they_are_told() -> None:
    assert described({"a": ("x", "y"), "b": ("x", "y")}) == "rows are split by x, y"
    assert described({"a": ("*",)}) == "rows are split by all values"
    assert described({"a": ("x",), "b": ("*",)}) == "rows are split by x of a; all values of b"


COLUMNS = ("x", "y", "z")
columns = st.sampled_from(COLUMNS)
offers = st.one_of(
    st.builds(lambda a: origin(a=a), columns),
    st.builds(lambda b: origin(b=b), columns),
    st.builds(lambda a, b: origin(a=a, b=b), columns, columns),
)
needs = st.lists(st.lists(offers, max_size=4, unique=True).map(lambda found: Need("op", tuple(found))), max_size=4)


@given(needs)
def test_what_is_derived_parts_nothing(wanted: list[Need]) -> None:
    found = derived(wanted, ["a", "b"], anything)
    if isinstance(found, Underivable):
        assert all(parted(wanted, {"a": (one,), "b": (other,)}) for one in COLUMNS for other in COLUMNS), (
            "there were columns, and they were not found"
        )
    else:
        assert not parted(wanted, found)


rows = st.lists(st.fixed_dictionaries(dict.fromkeys(COLUMNS, st.integers(0, 2))), max_size=30)
key_sets = st.lists(st.lists(columns, min_size=1, max_size=3, unique=True), min_size=1, max_size=3)


@given(rows, key_sets, st.lists(columns, min_size=1, max_size=2, unique=True))
def test_rows_with_equal_keys_meet_unless_an_operator_is_parted(
    table: list[dict[str, int]], groups: list[list[str]], shard_by: list[str]
) -> None:
    wanted = [Need(",".join(keys), tuple(origin(a=key) for key in keys)) for keys in groups]
    split = {need.operator for need in parted(wanted, {"a": tuple(shard_by)})}
    for keys in groups:
        shards = defaultdict(set)
        for row in table:
            shards[tuple(row[key] for key in keys)].add(tuple(row[column] for column in shard_by))
        if ",".join(keys) not in split:
            assert all(len(places) == 1 for places in shards.values())
