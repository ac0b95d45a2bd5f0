//! One module for each operation: its request, its result, and their bytes.
//!
//! Operations whose request has no body and whose result is a type of `tinkrs-types` need no
//! module: their declaration in [`endpoint`](crate::endpoint) says it all.

pub mod asample;
pub mod assign_session_project;
pub mod auth_token;
pub mod cancel_future;
pub mod client_config;
pub mod copy_weights;
pub mod create_custom_loss;
pub mod create_model;
pub mod create_sampling_session;
pub mod create_session;
pub mod data_folder;
pub mod finish_session;
pub mod forward;
pub mod forward_backward;
pub mod get_api_key;
pub mod get_info;
pub mod healthz;
pub mod join_sampling_session;
pub mod list_sessions;
pub mod load_weights;
pub mod metrics;
pub mod optim_step;
pub mod retrieve_future;
pub mod retrieve_futures;
pub mod run_view;
pub mod save_weights;
pub mod save_weights_external;
pub mod save_weights_for_sampler;
pub mod search_sessions;
pub mod server_view;
pub mod session_heartbeat;
pub mod set_checkpoint_ttl;
pub mod studio;
pub mod telemetry;
pub mod tokenizer;
pub mod unload_model;
pub mod weights_info;
