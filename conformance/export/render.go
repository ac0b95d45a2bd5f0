// Renders conversations with a template of Go, as Ollama does: {"template": TEXT, "conversations": [[{"Role", "Content"}]]} on stdin,
// a list of texts on stdout.
package main

import (
	"encoding/json"
	"log"
	"os"
	"strings"
	"text/template"
)

type message struct{ Role, Content string }

func main() {
	var request struct {
		Template      string
		Conversations [][]message
	}
	if err := json.NewDecoder(os.Stdin).Decode(&request); err != nil {
		log.Fatal(err)
	}
	parsed, err := template.New("").Option("missingkey=zero").Parse(request.Template)
	if err != nil {
		log.Fatal(err)
	}
	texts := []string{}
	for _, messages := range request.Conversations {
		var text strings.Builder
		if err := parsed.Execute(&text, map[string]any{"Messages": messages}); err != nil {
			log.Fatal(err)
		}
		texts = append(texts, text.String())
	}
	if err := json.NewEncoder(os.Stdout).Encode(texts); err != nil {
		log.Fatal(err)
	}
}
