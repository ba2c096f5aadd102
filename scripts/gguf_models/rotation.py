"""The settings of a rotary embedding in config.json and in GGUF."""
import numpy as np

from script_errors import UserError

# The settings of Llama 3, which GGUF does not store: it stores the factors that follow from them.
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_POSITIONS = 8192


def rope_settings(config, layers="full_attention"):
    """Returns rope_theta, rope_type and the settings of its scaling. If layers with a window have
    their own rotation, returns the rotation of layers without a window."""
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    settings = dict(settings.get(layers, settings))
    settings.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    settings["rope_type"] = settings.get("rope_type", settings.get("type", "default"))
    return settings


def llama3_factors(rope, size):
    """Returns the divisors of Llama 3.1's frequencies (rope_freqs in GGUF) as fp32 [size / 2]: 1
    for short wavelengths, `factor` for long wavelengths, and a linear interpolation of the
    frequencies between them."""
    wavelengths = rotation_wavelengths(rope["rope_theta"], size)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    trained = rope["original_max_position_embeddings"]
    share = np.clip((trained / wavelengths - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - share) / factor + share)).astype(np.float32)


def rotation_wavelengths(theta, size):
    """Returns the wavelengths of the rotation in positions, one for each pair of a head."""
    return 2 * np.pi * theta ** (np.arange(0, size, 2, dtype=np.float64) / size)


def llama3_settings(factors, theta, path):
    """Returns the settings that give these factors, assuming Llama 3's bounds of frequencies. The
    number of positions on which the model was trained follows from a factor between 1 and the
    largest one."""
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
        raise UserError(f"{path}: rope_freqs.weight holds factors that are not those of a rotary "
                        "embedding of type llama3; use the Hugging Face folder of the model")
    return settings
