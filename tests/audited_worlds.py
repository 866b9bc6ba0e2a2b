"""Old names of `audit_contexts`, for tests that still import them."""

from audit_contexts import FLOAT64, planned  # noqa: F401
from audit_contexts import no_progress as quiet  # noqa: F401
from audit_contexts import small_context as small_world  # noqa: F401
