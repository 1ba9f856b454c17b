"""The worker protocol of SMG's gateways, `vllm.grpc.engine.VllmEngine`, on the gRPC port."""
