//! The program `minio-dev`: the same verbs as `tidelog minio-dev`.
//!
//! Owns: nothing but the exit code.
//! Not here: everything else, see the library.
//! Spec: docs/guides/local-s3.md

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use tidelog_minio_dev::MinioDev;

#[derive(Parser)]
#[command(name = "minio-dev", version, about)]
struct Arguments {
    #[command(flatten)]
    verbs: MinioDev,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.verbs.run(&mut std::io::stdout()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to tell when standard error is closed too.
            drop(writeln!(std::io::stderr(), "error: {error}"));
            ExitCode::FAILURE
        }
    }
}
