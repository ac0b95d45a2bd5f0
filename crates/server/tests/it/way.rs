//! What is said to a server, by whichever way it gets there.

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::caller::{Answer, KEY};

/// A way to a server, with or without a connection.
pub(crate) trait Way {
    async fn send(&self, request: Request<Full<Bytes>>) -> Answer;

    /// Sends JSON, or nothing if the body is null. Paths of the OpenAI and Anthropic APIs are whole.
    async fn call(&self, method: Method, path: &str, body: &Value) -> Answer {
        let bytes = match body {
            Value::Null => Bytes::new(),
            body => body.to_string().into(),
        };
        let api = if path.starts_with("/v1/") {
            ""
        } else {
            "/api/v1"
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("{api}{path}"))
            .header("host", "localhost")
            .header("x-api-key", KEY)
            .header("content-type", "application/json");
        self.send(request.body(Full::new(bytes)).unwrap()).await
    }

    /// Posts JSON that must be answered by 200, however often the server is busy before.
    async fn ok(&self, path: &str, body: &Value) -> Value {
        loop {
            let answer = self.call(Method::POST, path, body).await;
            if answer.status == 429 {
                tokio::task::yield_now().await;
                continue;
            }
            assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
            return answer.json();
        }
    }

    /// Waits for a result.
    async fn result(&self, promise: &Value) -> Value {
        let poll = json!({"request_id": promise["request_id"]});
        loop {
            let answer = self.call(Method::POST, "/retrieve_future", &poll).await;
            if answer.status != 408 {
                assert_eq!(answer.status, 200, "{promise}: {:?}", answer.body);
                return answer.json();
            }
        }
    }
}
