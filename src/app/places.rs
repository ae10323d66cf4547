//! Checks what a configuration refers to outside of itself before anything is started: folders, models, and addresses to listen on. All
//! problems are reported together, as mistakes in the configuration.

use super::{
    base::{repository, spill_folder, unknown},
    listen::taken,
};
use crate::{
    config::{Chosen, Config, RepositoryMode},
    http, models,
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{fs, io, net::SocketAddr, path::Path};

/// The options whose values cannot be used, and why, for a server (`serves`) or for `ocelli check`.
pub fn unfit(config: &Config, serves: bool) -> Vec<(&'static str, String)> {
    let mut unfit = Vec::new();
    let mut note = |option, fits: Result<(), String>| {
        if let Err(why) = fits {
            unfit.push((option, why));
        }
    };
    note(
        "models",
        fs::read_dir(&config.models)
            .map(drop)
            .map_err(|error| {
                let here = std::env::current_dir().unwrap_or_default();
                format!(
                    "cannot read the folder that holds the models, as seen from {}: {error}; name it with --models or OCELLI_MODELS",
                    here.display()
                )
            }),
    );
    // Scanned only if needed: that may take long.
    if let Chosen::Only(_) = &config.startup_models
        && let Ok(found) = models::scan(&repository(config))
    {
        for why in unknown(&found, config) {
            note("startup_models", Err(why));
        }
    }
    note("base_path", http::check_base_path(&config.base_path));
    note("stack_spill_folder", spill_folder(config));
    if let Some(folder) = &config.log_dir {
        let made = fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
        let made = made.map(drop).map_err(|error| format!("cannot write there: {error}"));
        note("log_dir", made.and_then(|()| unwatched(folder, config)));
    }
    if serves {
        let listeners = [
            ("listen", &config.listen[..]),
            ("admin_listen", config.admin_listen.as_slice()),
            ("metrics_listen", config.metrics_listen.as_slice()),
            ("grpc_listen", config.grpc_listen.as_slice()),
        ];
        for (option, addresses) in listeners {
            for address in addresses {
                note(option, can_be_had(*address).map_err(|error| taken(*address, option, &error)));
            }
        }
    }
    unfit
}

/// Whether log files stay outside the model folder: otherwise each line would trigger a reload, which writes lines.
fn unwatched(folder: &Path, config: &Config) -> Result<(), String> {
    let real = [folder, &config.models].map(fs::canonicalize);
    match (config.repository_mode, real) {
        (RepositoryMode::Watch, [Ok(folder), Ok(models)]) if folder.starts_with(&models) => Err(format!(
            "it lies in {}, which repository_mode = \"watch\" follows: every line would be a change; name a folder elsewhere",
            models.display()
        )),
        _ => Ok(()),
    }
}

/// Whether an address can be listened on now. Nobody can connect to it during the check.
fn can_be_had(address: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // As a real listener does: what an earlier server has left there is no obstacle.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn folders_and_addresses_that_are_not_fit_are_told_together_by_their_options() {
        let folder = tempfile::tempdir().expect("a folder");
        let gone = folder.path().join("gone");
        // No folder can be made within a file, not even by root.
        let file = folder.path().join("file");
        fs::write(&file, "").expect("a file");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it has one");
        let free = "127.0.0.1:0".parse().expect("an address");
        let config = Config {
            models: gone.clone(),
            stack_spill_folder: gone,
            log_dir: Some(file.join("logs")),
            listen: vec![free, address],
            admin_listen: None,
            grpc_listen: Some(address),
            ..Config::default()
        };
        let options =
            |serves| unfit(&config, serves).into_iter().map(|(option, _)| option).collect::<Vec<_>>();
        assert_eq!(options(true), ["models", "stack_spill_folder", "log_dir", "listen", "grpc_listen"]);
        assert_eq!(options(false), ["models", "stack_spill_folder", "log_dir"]);
        let told = unfit(&config, true);
        let hint = "; give grpc_listen another port, or end what listens there";
        assert!(told[4].1.starts_with(&format!("cannot listen on {address}: ")), "{told:?}");
        assert!(told[4].1.ends_with(hint), "{told:?}");
        drop(listener);
        let (models, log_dir) = (folder.path().to_owned(), Some(folder.path().join("logs")));
        let fits = Config { models, log_dir, stack_spill_folder: "".into(), ..config };
        assert_eq!(unfit(&fits, true), []);
    }

    #[test]
    fn log_files_within_a_folder_of_models_that_is_watched_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let models = folder.path().join("models");
        fs::create_dir_all(models.join("digits")).expect("a folder");
        let told = |log_dir: &str, repository_mode| {
            let log_dir = Some(folder.path().join(log_dir));
            unfit(&Config { models: models.clone(), log_dir, repository_mode, ..Config::default() }, false)
        };
        for within in ["models", "models/logs", "models/digits/logs", "logs/../models/digits"] {
            let told = told(within, RepositoryMode::Watch);
            assert!(
                matches!(&told[..], [("log_dir", why)] if why.contains("every line would be a change")),
                "{within}: {told:?}"
            );
        }
        assert_eq!(told("models/digits/logs", RepositoryMode::Explicit), []);
        for elsewhere in ["logs", "models-of-logs"] {
            assert_eq!(told(elsewhere, RepositoryMode::Watch), [], "{elsewhere}");
        }
    }

    #[test]
    fn a_base_path_that_hides_paths_of_the_api_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let told = |base: &str| {
            let config =
                Config { models: folder.path().to_owned(), base_path: base.into(), ..Config::default() };
            unfit(&config, false)
        };
        for base in ["/v2", "/v1/eye", "/predictions", "/metrics", "/ping", "/docs", "/openapi.yaml"] {
            let told = told(base);
            assert!(
                matches!(&told[..], [("base_path", why)] if why.contains("begin with /")),
                "{base}: {told:?}"
            );
        }
        for base in ["", "/vision", "/v3", "/eye/v2", "/v2x"] {
            assert_eq!(told(base), [], "{base}");
        }
    }

    #[test]
    fn models_to_start_with_that_are_not_there_are_each_told_with_what_is_like_them() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["digits", "spots"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let only = |names: &[&str]| Config {
            models: folder.path().to_owned(),
            startup_models: Chosen::Only(names.iter().map(|name| (*name).to_owned()).collect()),
            ..Config::default()
        };
        assert_eq!(unfit(&only(&["digits"]), false), []);
        assert_eq!(unfit(&only(&[]), false), []);
        let there = folder.path().display();
        assert_eq!(
            unfit(&only(&["digit", "spots", "other"]), false),
            [
                ("startup_models", format!("there is no model \"digit\" in {there}; nearest: digits")),
                ("startup_models", format!("there is no model \"other\" in {there}")),
            ]
        );
    }
}
