// A page that is only read: what all pages have, and nothing else.

import "./shell.js";
