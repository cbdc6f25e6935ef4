"""YAML that people write, read strictly."""

from typing import Any

import yaml
from yaml.constructor import ConstructorError


class EachKeyOnce(yaml.SafeLoader):
    """A loader to which a key that stands twice is an error: the first one's value would be dropped without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of one node."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise ConstructorError(None, None, f"the key {twice} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)
