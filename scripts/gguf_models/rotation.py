"""A rotation's settings, as config.json and as GGUF say them."""
import numpy as np

from script_errors import UserError

# Llama 3's own, which GGUF does not hold: it holds the factors that follow from them.
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_POSITIONS = 8192


def rope_settings(config, layers="full_attention"):
    """Returns rope_theta, rope_type and what scales the rotation. If layers with a window have a
    rotation of their own, it is that of the layers without one."""
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    settings = dict(settings.get(layers, settings))
    settings.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    settings["rope_type"] = settings.get("rope_type", settings.get("type", "default"))
    return settings


def llama3_factors(rope, size):
    """Returns the divisors of Llama 3.1's frequencies: 1 for the short wavelengths, `factor` for
    the long ones, between them a linear mixture of the frequencies (rope_freqs in GGUF), fp32 [size
    / 2]."""
    wavelengths = rotation_wavelengths(rope["rope_theta"], size)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    trained = rope["original_max_position_embeddings"]
    share = np.clip((trained / wavelengths - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - share) / factor + share)).astype(np.float32)


def rotation_wavelengths(theta, size):
    return 2 * np.pi * theta ** (np.arange(0, size, 2, dtype=np.float64) / size)


def llama3_settings(factors, theta, path):
    """Returns the settings that give these factors, with Llama 3's own bounds of frequencies. The
    number of positions that the model was trained on follows from a factor between 1 and the
    largest."""
    factors = np.asarray(factors, dtype=np.float64)
    wavelengths = rotation_wavelengths(theta, 2 * len(factors))
    largest = float(factors.max())
    settings = {**LLAMA3, "rope_theta": theta, "factor": largest,
                "original_max_position_embeddings": LLAMA3_POSITIONS}
    between = np.flatnonzero((factors > 1.001) & (factors < 0.999 * largest))
    if between.size:
        at = between[len(between) // 2]
        share = (1.0 / factors[at] - 1.0 / largest) / (1.0 - 1.0 / largest)
        low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
        positions = (share * (high - low) + low) * wavelengths[at]
        settings["original_max_position_embeddings"] = round(float(positions))
    if not np.allclose(llama3_factors(settings, 2 * len(factors)), factors, rtol=1e-5, atol=0):
        raise UserError(f"{path}: rope_freqs.weight holds factors that are not those of a rotation "
                        "of type llama3; take the Hugging Face folder of the model")
    return settings
