-- Which binaries can work with each version of the schema: package migrations says how it is used.

-- +goose Up
CREATE TABLE schema_versions (version bigint PRIMARY KEY, oldest bigint NOT NULL);
INSERT INTO schema_versions (version, oldest) VALUES (5, 4);

-- +goose Down
DROP TABLE schema_versions;
