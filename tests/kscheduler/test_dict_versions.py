"""Every way to change a namespace is seen by its version number."""

from __future__ import annotations

import sys

import pytest

from kscheduler import _core


class Thing:
    setting = 1.0

    def __init__(self):
        self.value = 1.0

    def assign(self, value):
        self.value = value


def assign_often(thing):
    for number in range(200):  # long enough for the interpreter to specialise the store
        thing.assign(float(number))


def change_class(thing):
    Thing.setting = 2.0 if Thing.setting == 1.0 else 1.0


CHANGES = {
    "setattr": lambda thing: setattr(thing, "value", 2.0),
    "specialised store": assign_often,
    "new name": lambda thing: setattr(thing, "other", 1),
    "delete": lambda thing: delattr(thing, "value"),
    "item": lambda thing: vars(thing).__setitem__("value", 3.0),
    "update": lambda thing: vars(thing).update(value=4.0),
    "clear": lambda thing: vars(thing).clear(),
    "pop": lambda thing: vars(thing).pop("value"),
    "class": change_class,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen(change):
    thing = Thing()
    assign_often(thing)
    versions = _core.DictVersions([vars(thing), vars(Thing)])
    assert versions.changed() == [0, 1]
    versions.accept()
    change(thing)
    assert (1 if change is change_class else 0) in versions.changed()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="dicts count as changed there")
def test_what_is_accepted_is_not_looked_at_again():
    thing = Thing()
    versions = _core.DictVersions([vars(thing)])
    versions.changed()
    versions.accept()
    assert versions.changed() == []
    assert thing.value == 1.0
    assert versions.changed() == []


def test_only_dicts_and_classes_have_versions():
    assert _core.has_version({})
    assert _core.has_version(vars(Thing))
    assert not _core.has_version([])
    assert not _core.has_version(Thing())
