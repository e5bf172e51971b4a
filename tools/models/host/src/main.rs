// SPDX-License-Identifier: GPL-2.0

//! Runs modelled devices, each at a socket of its own, until standard input ends.
//!
//! On standard output it prints `chaos`, the name and the seed of each device that has one, then
//! `ready` when it listens, and `removed` and the name of a device that is removed by surprise.
//! Each line on standard error is an error.

mod options;

use std::env;
use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use edu::device::Edu;
use gpu::device::Gpu;
use options::Kind;
use options::Options;
use vfio_user::server;
use vfio_user::server::Device;
use vfio_user::switch::Switch;

/// The maximum time in which the devices finish their work when the clients are gone.
const LAST_WORDS: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);

fn main() -> ExitCode {
    let result = options::parse(env::args().skip(1)).and_then(run);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("models: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(devices: Vec<Options>) -> Result<(), String> {
    let switch = Arc::new(Switch::default());
    let mut running = Vec::new();
    for options in devices {
        let with_name = |error: io::Error| format!("{}: {error}", options.socket.display());
        // A socket that an earlier run left behind would make the bind fail.
        let _ = fs::remove_file(&options.socket);
        let device = device(&options, &switch).map_err(with_name)?;
        let listener = UnixListener::bind(&options.socket).map_err(with_name)?;
        let served = device.clone();
        thread::spawn(move || {
            let error = server::serve(&listener, &*served);
            eprintln!("{}: {error}", options.socket.display());
        });
        running.push(device);
    }
    println!("ready");
    // The parent process closes standard input when the clients are gone.
    io::copy(&mut io::stdin(), &mut io::sink())
        .map_err(|error| format!("standard input: {error}"))?;
    let end = Instant::now() + LAST_WORDS;
    while running.iter().any(|device| device.is_busy()) && Instant::now() < end {
        thread::sleep(LOOK);
    }
    Ok(())
}

/// A device below the switch.
fn device(options: &Options, switch: &Arc<Switch>) -> io::Result<Arc<dyn Device>> {
    let log = |line: &str| eprintln!("{line}");
    Ok(match &options.kind {
        Kind::Edu => Edu::new(&options.name, options.strict, switch.clone(), log),
        Kind::Gpu {
            vram,
            aperture,
            chaos,
        } => {
            if *chaos != 0 {
                println!("chaos {} {chaos}", options.name);
            }
            let gpu = gpu::device::Options {
                name: options.name.clone(),
                vram: *vram,
                aperture: *aperture,
                strict: options.strict,
                chaos: *chaos,
            };
            let name = options.name.clone();
            Gpu::new(&gpu, switch.clone(), log, move || {
                println!("removed {name}")
            })?
        }
    })
}
