//! Warnings of libraries.

/// Sends warnings of libraries to stderr. `TIDEMILL_LOG` chooses other levels, as in `info` or
/// `tidemill_io=debug`. If the program has set up logging before, this does nothing.
pub fn show_warnings() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TIDEMILL_LOG");
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    // If stderr is closed, tracing would report its own failure to stderr and panic.
    let subscriber = tracing_subscriber::fmt().log_internal_errors(false).with_env_filter(filter);
    let subscriber = subscriber.with_writer(std::io::stderr);
    // An error means that there is a subscriber already.
    let _ = subscriber.without_time().with_target(false).try_init();
}
