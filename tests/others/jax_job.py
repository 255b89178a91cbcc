#!/usr/bin/env python3
"""JAX on XLA's allocators, as the environment says."""

import sys

import common

try:
    import jax
    import jax.numpy as jnp
except ImportError as missing:
    print(f"not here: {missing}")
    sys.exit(common.NOT_HERE)


@jax.jit
def layer(x, w):
    return jnp.maximum(x @ w - 100.0, 0.0)


def main():
    common.version("jax")
    common.say("device", jax.devices()[0].platform)
    index = jnp.arange(1024 * 1024)
    x = (index % 7).reshape(1024, 1024).astype(jnp.float32)
    w = (index % 5).reshape(1024, 1024).astype(jnp.float32)
    result = jax.device_get(layer(x, w))
    common.say("layer", common.digest(result.tobytes()))
    parts = [jnp.full((1 << 20,), number, jnp.int32) for number in range(24)]
    common.say("parts", int(sum(parts).sum()))
    # Whole numbers in a float's mantissa: exact.
    gradient = jax.grad(lambda w: layer(x[:8], w).sum())(w)
    common.say("gradient",
               common.digest(jax.device_get(gradient).tobytes()))
    common.preloaded("main")


if __name__ == "__main__":
    main()
