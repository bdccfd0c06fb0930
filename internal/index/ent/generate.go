// Package ent contains the index's small tables: code generated from the entities in package schema.
// The hot tables are not entities: they are in migrations/ and in the adapters.
package ent

//go:generate go tool ent generate --feature sql/execquery,sql/lock,sql/modifier,sql/versioned-migration --target . ./schema
//go:generate rm -r enttest hook
//go:generate go run ./migratediff -migrations ../../../migrations
