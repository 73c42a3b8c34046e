//! Programs with handlers and masks of their own are served, and told what they believe.

cases! {
    "signals.c", &[];
    handler_before handler_after handlers_touch_maps blocked_threads small_alternate_stack tiny_stacks deep_handlers waiting_for_sigbus old_calls
    passed_on vfork_child ignored cancelled left_calls;
    kernel default_action
}
