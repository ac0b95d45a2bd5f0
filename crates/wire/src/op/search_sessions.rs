//! `POST /sessions/search`: finds sessions. Both bodies are types of `tinkrs-types`.

use crate::json::body;
use tinkrs_types::session::SessionSearch;

body!(SessionSearch);
