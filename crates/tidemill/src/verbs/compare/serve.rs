//! `tidemill compare serve`: the page for raters.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tidemill_compare::database::Database;
use tidemill_compare::server::{ServeOptions, serve};

use super::study_file::database_path;
use crate::engine::stop_signal::StopSignal;
use crate::error::Result;
use crate::progress::Reporter;

/// Pause between two looks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Arguments of `tidemill compare serve`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The study.
    pub study: PathBuf,
    /// The address to listen at. TLS is the business of a proxy.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub host: IpAddr,
    /// The port; 0: any free one.
    #[arg(long, default_value_t = 8765)]
    pub port: u16,
    /// Make a new token for the administrator. The first one is made and shown at the first start.
    #[arg(long)]
    pub new_admin_token: bool,
}

/// Serves the study until a signal.
///
/// # Errors
/// If there is no study, or the address cannot be used.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let path = database_path(&args.study);
    let database = Database::open(&path)?;
    let stop = StopSignal::watch();
    if args.new_admin_token || database.read_admin_token_hash()?.is_none() {
        let token = database.renew_admin_token()?;
        reporter.report(format!("the administrator's token, which is shown only once: {token}"));
    }
    let admin_token_hash = database.read_admin_token_hash()?.unwrap_or_default();
    drop(database);
    let options = ServeOptions { address: args.host, port: args.port, admin_token_hash };
    let on_ready = |address| {
        reporter.report(format!("raters: http://{address}/#<token> (tidemill compare invite)"));
        reporter.report(format!("administrator: http://{address}/admin#<token>"));
    };
    serve(&path, &options, on_ready, async {
        while !stop.is_raised() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    })?;
    let database = Database::open(&path)?;
    let progress = database.count_progress()?;
    reporter.report(format!("{} of {} judgements", progress.judged, progress.judged + progress.left));
    Ok(json!({ "verb": "compare", "study": path, "judged": progress.judged, "left": progress.left }))
}
