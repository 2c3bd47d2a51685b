# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes: from the data of one file to the one configuration that every rank runs.

A recipe is a mapping. Its ``variants`` hold, per selector (``ranks``, ``topology``, ``profile``, ``speculation``, ...)
and per value, what differs from the rest; ``defaults`` names the value taken when the user says nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import jinja2
import jinja2.sandbox

from ansible_collections.tandem.serving.plugins.module_utils._check import Check, check

# What an override may touch. Everything else says which recipe this is.
OVERRIDABLE = (
    "model",
    "drafter",
    "image",
    "serve",
    "env",
    "container",
    "memory",
    "limits",
    "ports",
    "canary",
    "startup",
)


class RecipeError(Exception):
    """The recipe or what the user asked of it makes no sense. The text says what was expected and what was found."""


def _merge(base: Any, over: Any) -> Any:
    """Merge mappings recursively; anything else replaces. ``null`` in ``over`` takes a key away."""
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return copy.deepcopy(over)
    merged = {key: copy.deepcopy(value) for key, value in base.items()}
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


def resolve(base: Mapping[str, Any], selected: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the selected variants, then the user's overrides.

    ``selected`` maps a selector to its value; an empty value means the recipe's own default. Returns the recipe without
    ``variants`` and ``defaults``, with ``selected`` as it was resolved. Raises RecipeError on a value or a key that the
    recipe does not know.
    """
    variants: Mapping[str, Mapping[str, Any]] = base.get("variants", {})
    recipe = {key: copy.deepcopy(value) for key, value in base.items() if key not in ("variants", "defaults")}
    resolved: dict[str, str] = {}
    for selector, value in selected.items():
        choice = str(value or base.get("defaults", {}).get(selector, ""))
        resolved[selector] = choice
        known = {str(key): change for key, change in variants.get(selector, {}).items()}
        if choice in known:
            recipe = _merge(recipe, known[choice] or {})
        elif known and choice:
            raise RecipeError(
                f"recipe {base['name']}: {selector} is '{choice}', expected one of {', '.join(sorted(known))}. "
                f"Set recipe_{selector} to one of these, or add the variant to the recipe's file."
            )
    unknown = sorted(set(overrides) - set(OVERRIDABLE))
    if unknown:
        raise RecipeError(
            f"recipe_overrides has {', '.join(unknown)}, expected only {', '.join(OVERRIDABLE)}. "
            "A value for the engine's command line belongs under serve."
        )
    misspelt = sorted(key for key in overrides.get("serve", {}) if "_" in key)
    if misspelt:
        raise RecipeError(
            f"recipe_overrides.serve has {', '.join(misspelt)}, expected the engine's own spelling: "
            f"{', '.join(key.replace('_', '-') for key in misspelt)}."
        )
    return {**_merge(recipe, overrides), "selected": resolved}


def _evaluate(expression: str, context: Mapping[str, Any]) -> Any:
    environment = jinja2.sandbox.SandboxedEnvironment(undefined=jinja2.StrictUndefined)
    return environment.compile_expression(expression, undefined_to_none=False)(**context)


def judge(recipe: Mapping[str, Any], guards: Iterable[Mapping[str, str]], accepted: Iterable[str]) -> list[Check]:
    """Hold the recipe against its guards: one check each, fail where ``when`` is true, warn where the user accepted it.

    ``when`` and ``found`` are Jinja expressions over the recipe's keys. A key that a guard asks for and the recipe
    lacks is an error of the recipe, not a pass.
    """
    guards = list(guards)
    accepted = list(accepted)
    names = [guard["name"] for guard in guards]
    stray = sorted(set(accepted) - set(names))
    if stray:
        raise RecipeError(
            f"recipe_accept_risk names {', '.join(stray)}, expected names of guards: {', '.join(sorted(names))}."
        )
    checks = []
    for guard in guards:
        try:
            wrong = bool(_evaluate(guard["when"], recipe))
            found = _evaluate(guard["found"], recipe) if guard.get("found") else recipe["name"]
        except jinja2.TemplateError as error:
            raise RecipeError(f"guard {guard['name']} of recipe {recipe['name']}: {error}") from error
        verdict: Any = "pass" if not wrong else "warn" if guard["name"] in accepted else "fail"
        checks.append(
            check(
                f"guard {guard['name']}",
                verdict,
                guard["expected"],
                found,
                cause="ok" if not wrong else guard["name"],
                evidence=[guard["reason"]] if wrong else [],
                remedy=guard["remedy"] if wrong else "",
            )
        )
    return checks
