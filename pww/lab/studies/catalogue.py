"""All studies that come with the lab, by name."""

from collections.abc import Mapping

from pww.lab.studies import channels, methods
from pww.lab.studies.recipe import Recipe

RECIPES: Mapping[str, Recipe] = {one.name: one for one in (*methods.RECIPES, *channels.RECIPES)}
