// SPDX-License-Identifier: GPL-2.0

//! Runs modelled GPUs, each at a socket of its own, until standard input ends.
//!
//! On standard output it prints `ready` when it listens, and `removed` and the name of a device
//! that is removed by surprise. Each line on standard error is an error.

use std::env;
use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use gpu::device::Gpu;
use gpu::options;
use gpu::options::Options;
use vfio_user::server;
use vfio_user::switch::Switch;

/// The maximum time in which the devices finish their work when the clients are gone.
const LAST_WORDS: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);

fn main() -> ExitCode {
    let result = options::parse(env::args().skip(1)).and_then(run);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(devices: Vec<Options>) -> Result<(), String> {
    let switch = Arc::new(Switch::default());
    let mut gpus = Vec::new();
    for options in devices {
        let with_name = |error: io::Error| format!("{}: {error}", options.socket.display());
        // A socket that an earlier run left behind would make the bind fail.
        let _ = fs::remove_file(&options.socket);
        let name = options.name.clone();
        let gpu = Gpu::new(
            &options,
            switch.clone(),
            |line| eprintln!("{line}"),
            move || println!("removed {name}"),
        )
        .map_err(with_name)?;
        let listener = UnixListener::bind(&options.socket).map_err(with_name)?;
        let served = gpu.clone();
        thread::spawn(move || {
            let error = server::serve(&listener, &*served);
            eprintln!("{}: {error}", options.socket.display());
        });
        gpus.push(gpu);
    }
    println!("ready");
    // The parent process closes standard input when the clients are gone.
    io::copy(&mut io::stdin(), &mut io::sink())
        .map_err(|error| format!("standard input: {error}"))?;
    let end = Instant::now() + LAST_WORDS;
    while gpus.iter().any(|gpu| gpu.is_busy()) && Instant::now() < end {
        thread::sleep(LOOK);
    }
    Ok(())
}
