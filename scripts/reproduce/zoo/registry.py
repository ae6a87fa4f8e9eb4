"""All architectures by name."""

from reproduce.zoo import jax_models, keras_applications, keras_text, keras_vision, recurrent

ARCHITECTURES = {
    architecture.name: architecture
    for module in (keras_applications, keras_text, keras_vision, recurrent, jax_models)
    for architecture in module.ARCHITECTURES
}
