//! The OpenAPI document: the table of [endpoints](crate::endpoint) in a form that other tools read.
//!
//! Schemas come from the types that are read and written. They show what a body may have: the server
//! refuses members of a request that are not in its schema, and clients ignore what they do not know.

use crate::anthropic::AnthropicErrorBody;
use crate::endpoint::{self, Auth, Clients, Content, Dialect, Endpoint, Response};
use crate::op::retrieve_future::{MetadataOnly, TryAgain};
use crate::openai::OpenAiErrorBody;
use crate::{ErrorBody, SDK_VERSION, header};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use tinkrs_types::protocol::{FailedRequest, Promise};

/// Writes the document, with the members of every object in the order of their names.
pub fn document() -> Value {
    let mut document = unsorted();
    // What else is in the program decides whether `serde_json` sorts them itself.
    document.sort_all_objects();
    document
}

fn unsorted() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut schemas = settings.into_generator();
    let mut paths = Map::new();
    for endpoint in endpoint::ALL {
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        let method = endpoint.method.as_str().to_ascii_lowercase();
        path[method.as_str()] = operation(endpoint, &mut schemas);
    }
    let error = media(schemas.subschema_for::<ErrorBody>());
    let openai_error = media(schemas.subschema_for::<OpenAiErrorBody>());
    let anthropic_error = media(schemas.subschema_for::<AnthropicErrorBody>());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tinkrs",
            "summary": "The Tinker API, as served by Tinkrs.",
            "version": SDK_VERSION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "api_key": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-API-Key",
                    "description": "An API key, or a token from `auth_token`.",
                },
                "admin_key": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-API-Key",
                    "description": "A key of the file that `--admin-key-file` names.",
                },
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The same as `Authorization: Bearer`.",
                },
                "login": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "Any user name, and an API key as the password.",
                },
            },
            "responses": {
                "Error": {
                    "description": "The request was refused: `detail` says why.",
                    "content": {header::JSON: error},
                },
                "OpenAiError": {
                    "description": "The request was refused: `error.message` says why.",
                    "content": {header::JSON: openai_error},
                },
                "AnthropicError": {
                    "description": "The request was refused: `error.message` says why.",
                    "content": {header::JSON: anthropic_error},
                },
            },
            "schemas": schemas.take_definitions(true),
        },
    })
}

fn operation(endpoint: &Endpoint, schemas: &mut SchemaGenerator) -> Value {
    let mut operation = json!({
        "operationId": endpoint.name,
        "summary": endpoint.doc,
        "security": security(endpoint.auth),
        "x-clients": match endpoint.clients {
            Clients::Official => "official",
            Clients::Older => "older",
            Clients::Ours => "tinkrs",
            Clients::Others => "others",
        },
    });
    let hosted_prefix = endpoint.dialect().hosted_prefix();
    if !hosted_prefix.is_empty() {
        operation["servers"] = json!([{"url": "/"}, {"url": hosted_prefix}]);
    }
    if endpoint.clients == Clients::Older {
        operation["deprecated"] = true.into();
    }
    let parameters = parameters(endpoint, schemas);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(content) = content(&endpoint.request, schemas) {
        operation["requestBody"] = json!({"required": true, "content": content});
    }
    operation["responses"] = responses(&endpoint.response, schemas);
    if let Some(events) = &endpoint.events {
        let schema = events.schema(schemas);
        operation["responses"]["200"]["content"][header::EVENT_STREAM] = json!({"schema": schema});
    }
    let error = match endpoint.dialect() {
        Dialect::Tinker => "#/components/responses/Error",
        Dialect::Anthropic => "#/components/responses/AnthropicError",
        Dialect::OpenAi => "#/components/responses/OpenAiError",
    };
    operation["responses"]["default"] = json!({"$ref": error});
    operation
}

fn security(auth: Auth) -> Value {
    match auth {
        // What a signed link may do is in its query.
        Auth::Public | Auth::SignedLink => json!([]),
        Auth::Key => json!([{"api_key": []}, {"bearer": []}]),
        Auth::Admin => json!([{"admin_key": []}]),
        Auth::Login => json!([{"api_key": []}, {"login": []}]),
    }
}

fn parameters(endpoint: &Endpoint, schemas: &mut SchemaGenerator) -> Vec<Value> {
    let in_path = endpoint.parameters().map(|name| {
        let schema = if name == "kind" {
            json!({"type": "string", "enum": ["weights", "sampler_weights", "external_weights"]})
        } else {
            json!({"type": "string"})
        };
        json!({"name": name, "in": "path", "required": true, "schema": schema})
    });
    let mut parameters: Vec<_> = in_path.collect();
    let Some(query) = &endpoint.query else {
        return parameters;
    };
    let fields = query.schema(schemas);
    for name in query.names() {
        let mut schema = fields["properties"][name].clone();
        let required = fields["required"].as_array();
        let required = required.is_some_and(|names| names.iter().any(|it| it == name));
        let mut parameter = json!({"name": name, "in": "query", "required": required});
        if let Some(text) = schema
            .as_object_mut()
            .and_then(|it| it.remove("description"))
        {
            parameter["description"] = text;
        }
        parameter["schema"] = without_null(schema);
        parameters.push(parameter);
    }
    parameters
}

/// A parameter of a query is left out rather than null.
fn without_null(mut schema: Value) -> Value {
    if let Some(types) = schema["type"].as_array() {
        let types: Vec<_> = types.iter().filter(|name| **name != "null").collect();
        if let [only] = types[..] {
            schema["type"] = only.clone();
        }
    }
    match schema["anyOf"].as_array().map(Vec::as_slice) {
        Some([only, null]) if null["type"] == "null" => only.clone(),
        _ => schema,
    }
}

fn responses(response: &Response, schemas: &mut SchemaGenerator) -> Value {
    match response {
        Response::Result(result) => {
            let mut answer = json!({"description": "The result."});
            if let Some(content) = content(result, schemas) {
                answer["content"] = content;
            }
            json!({"200": answer})
        }
        Response::Promise(result) => json!({"200": {
            "description": "The request was accepted; its result is fetched by `retrieve_future`.",
            "content": {header::JSON: media(schemas.subschema_for::<Promise>())},
            "links": {"result": {
                "operationId": endpoint::RETRIEVE_FUTURE.name,
                "requestBody": {"request_id": "$response.body#/request_id"},
            }},
            "x-result": content(result, schemas),
        }}),
        Response::Redirect(target) => {
            let description = format!("A link to the result, as `{}`.", content_type(target));
            json!({"302": {
                "description": description,
                "headers": {"Location": {
                    "required": true,
                    "schema": {"type": "string", "format": "uri"},
                }},
            }})
        }
        Response::Future => future(schemas),
    }
}

/// The result of any request that was answered by a promise, or what there is to know of it.
fn future(schemas: &mut SchemaGenerator) -> Value {
    let mut forms = vec![];
    let mut messages: Vec<&str> = vec![];
    for endpoint in endpoint::ALL {
        let Response::Promise(result) = &endpoint.response else {
            continue;
        };
        if let Some(json) = result.json_type() {
            let form = json.schema(schemas);
            if !forms.contains(&form) {
                forms.push(form);
            }
        }
        if let Content::Message { message, .. } = result
            && !messages.contains(message)
        {
            messages.push(*message);
        }
    }
    forms.extend([
        schemas.subschema_for::<FailedRequest>().to_value(),
        schemas.subschema_for::<MetadataOnly>().to_value(),
        schemas.subschema_for::<TryAgain<'static>>().to_value(),
    ]);
    let description = format!("One of the protobuf messages {}.", messages.join(", "));
    json!({
        "200": {
            "description": "The result, its size, or why the request failed. Protobuf is for clients that accept it.",
            "content": {
                header::JSON: {"schema": {"anyOf": forms}},
                header::PROTOBUF: {"schema": {"description": description}},
            },
        },
        "408": {
            "description": "There is no result yet: ask again.",
            "content": {header::JSON: media(schemas.subschema_for::<TryAgain<'static>>())},
        },
        "410": {"$ref": "#/components/responses/Error"},
    })
}

fn media(schema: schemars::Schema) -> Value {
    json!({"schema": schema})
}

fn content_type(content: &Content) -> &'static str {
    match content {
        Content::Json(_) => header::JSON,
        Content::Message { .. } => header::PROTOBUF,
        Content::Form(_) => header::FORM,
        Content::Bytes(media_type) | Content::Text(media_type) => media_type,
        Content::None => "nothing",
    }
}

fn content(content: &Content, schemas: &mut SchemaGenerator) -> Option<Value> {
    Some(match content {
        Content::None => return None,
        Content::Json(json) => json!({header::JSON: {"schema": json.schema(schemas)}}),
        Content::Message { message, json } => {
            let description = format!("The protobuf message `{message}` of `tinker_public.proto`.");
            json!({
                header::PROTOBUF: {"schema": {"description": description}},
                header::JSON: {"schema": json.schema(schemas)},
            })
        }
        Content::Form(fields) => json!({header::FORM: {"schema": fields.schema(schemas)}}),
        Content::Bytes(media_type) => json!({*media_type: {"schema": {}}}),
        Content::Text(media_type) => json!({*media_type: {"schema": {"type": "string"}}}),
    })
}
