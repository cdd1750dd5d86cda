#!/bin/bash
#SBATCH --nodes=16
#SBATCH --gpus-per-node=8
#SBATCH --job-name=eight-billions

# a script in the manner of Megatron-LM's examples
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-1}
TP=4
PP=2
DTYPE="fp8"
DATA=$1

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --master_addr ${MASTER_ADDR:-localhost}
)

MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336      # not four times
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0
    --vocab-size 128256
)

TRAIN="
    --micro-batch-size 1 \
    --global-batch-size $((16 * TP * 2))
    --bf16
    --lr 3e-4
"
EXTRA=()
if [[ "$DTYPE" == "fp8" ]]; then
    EXTRA+=(--fp8-format hybrid --fp8-recipe tensorwise)
else
    EXTRA+=(--fp8-format none)
fi
EXTRA+=(--frobnicate 3)

torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    ${MODEL_ARGS[@]} $TRAIN "${EXTRA[@]}" \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size ${PP} \
    --num-layers-per-virtual-pipeline-stage 4 \
    --sequence-parallel --use-distributed-optimizer \
    --overlap-grad-reduce --overlap-param-gather \
    --recompute-granularity full --recompute-method block --recompute-num-layers 2 \
    --data-path $DATA
